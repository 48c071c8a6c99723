"""What the installed program's executable runs: the `tessera` command."""

from app.cli.main import main

if __name__ == "__main__":
    main()
