"""All phrases in English and Chinese, and how sentences are made of them."""
