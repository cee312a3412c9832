"""What is asked of networks on Ascend devices beyond errors and their flow."""
