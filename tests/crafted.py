"""A text such as a record of unknown origin may hold, with all that acts on a page."""

# What Markdown, HTML or MathJax would act on.
TEXT = (
    "[60](/etc/passwd) ![x](x.png) {download}`x </etc/passwd>` <file:///etc/passwd> "
    '<img src="x.png" onerror="alert(1)"> <script>alert(1)</script> </script> <!-- | '
    r"\(\href{javascript:alert(1)}{x}\) $\href{javascript:alert(1)}{x}$ &lt; "
    "\n\n```{include} /etc/passwd\n```\n\n# Heading\n"
)
