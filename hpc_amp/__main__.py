"""`python -m hpc_amp` is `hpc-amp`."""

from hpc_amp.cli import main

if __name__ == "__main__":
    main()
