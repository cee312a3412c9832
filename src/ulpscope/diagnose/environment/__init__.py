"""How two environments differ, and which difference is likely to have changed numbers."""
