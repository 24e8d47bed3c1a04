"""What the stand-ins of Cobalt and PBS share: a folder with a server's state, a server that runs
jobs in it, and the commands that ask this server. Nothing of hpc_amp is used here: the stand-ins
are the second opinion on what hpc_amp believes of these schedulers."""
