"""Long runs in little memory that survive being killed."""
