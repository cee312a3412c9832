"""`ulpscope diff`, and finding tensors by the names that users have for them."""
