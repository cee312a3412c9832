"""`ulpscope env`, and `ulpscope diff` of two environments."""
