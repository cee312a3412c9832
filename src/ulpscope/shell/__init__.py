"""The interactive shell: words of its users in, panels out. What the words ask for, workflows do."""
