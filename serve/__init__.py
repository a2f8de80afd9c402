"""Front ends over the embedding API."""

if __name__ != "tokloom.serve":
    raise ImportError("import tokloom.serve, not serve: the folder is reached through the installed package")
