"""What all processes that run a page have in common: their options, and how they end."""

import argparse
import errno
import logging
import os
import threading
import time
from pathlib import Path

from iterlin.study import environment

from iterlin_book import pages, states
from iterlin_book.pages import BookError
from iterlin_book.states import DONE, FAILED, INTERRUPTED, PARTIAL, REFUSED

PARENT = "end when the calling process ends"


class CellFailed(Exception):
    """A cell raised; the message names the page, the cell and where to look on."""


class Unfinished(Exception):
    """The time was over: the page's record lacks runs, or there is none of this run."""


def stop_with_parent():
    """End this process when the one that started it is gone, killed ones included."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # the kernel watches this process in the same way

    threading.Thread(target=watch, daemon=True).start()


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BookError(f"{self.prog}: {message}")


def parser_of(module, description):
    """Options that all processes of one page have."""
    parser = Parser(prog=f"iterlin_book.{module}", description=description.splitlines()[0])
    parser.add_argument("page", help="the page's file or name, such as xor")
    parser.add_argument("--tier", default=pages.QUICK, help="quick unless told")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--digest", help="stop where this is not the page's digest (the build's)")
    parser.add_argument("--parent", action="store_true", help=PARENT)
    return parser


def ended(name, work):
    """Do the work, say how it ended, behind its name, and return the exit status."""
    try:
        pages.say(f"{name}: {work()}")
        return DONE
    except BookError as error:
        pages.say(error, error=True)
        return REFUSED
    except CellFailed as error:
        pages.say(error, error=True)
        return FAILED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        pages.say(f"{name}: {error}", error=True)
        return FAILED
    except Unfinished as unfinished:
        pages.say(unfinished)
        return PARTIAL
    except KeyboardInterrupt:
        # Of the kernel that the same key has ended, and whose end nobody waits for any more.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        pages.say(f"{name}: interrupted", error=True)
        return INTERRUPTED


def noted(root, page, tier, part, work):
    """`ended`, announced, and noted for the build; nothing where there is no time to begin."""
    try:
        if environment.out_of_time():
            return PARTIAL
    except ValueError as error:
        pages.say(error, error=True)
        return REFUSED
    note = states.Note(root, tier, f"{page}{part}")
    name = f"{page} ({tier}{part.replace('.', ' ')})"
    pages.say(f"{name}: started")
    status = ended(name, work)
    note.write(status)
    return status
