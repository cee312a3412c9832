"""The words of ulpscope as frozen values; this room imports nothing else of ours."""
