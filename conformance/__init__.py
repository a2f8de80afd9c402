"""Doubles and suites that hold plugins to their contracts."""

if __name__ != "tokloom.conformance":
    raise ImportError(
        "import tokloom.conformance, not conformance: the folder is reached through the installed package"
    )
