print("a program of its own")
