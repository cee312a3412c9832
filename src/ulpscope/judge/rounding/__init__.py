"""Two runs: is a difference what rounding and what came in explain?"""
