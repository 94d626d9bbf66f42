"""``python -m cli``: the `trimtab` command where the script is not on the path."""

from cli.main import main

main()
