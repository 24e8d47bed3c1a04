"""Make `python -m hpc_amp` run the command `hpc-amp`."""

from hpc_amp.cli import main

if __name__ == "__main__":
    main()
