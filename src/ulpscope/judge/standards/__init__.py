"""Fixed standards by name, for users who must report against them."""
