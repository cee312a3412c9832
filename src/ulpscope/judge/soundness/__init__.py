"""One executed call: is what it gave what a sound kernel gives?"""
