"""How sentences and commands are made of phrases, in English and Chinese."""
