"""What a real qsub said of PBS headers: every value here was given to it (OpenPBS 23.06.06,
2026-11-28), and it refused or took the header as these tables say. The option stands before its
values; several lines are several directives."""

from __future__ import annotations

# fmt: off
REFUSED: dict[str, list[str]] = {
    "-l walltime=": [
        "24h", "90m", "1-00:00:00", "1:2:3:4", ":30", "-5", "abc", "1e3", " 10", "+5", " 60",
        "60;ncpus=2",
    ],
    "-l cput=": ["24h"],
    "-J ": ["4-1", "1-1", "1-4:0", "1,2", "1-3,5", "-1-3", "5", "3-3", "a-b", "1-4%", "1-4:"],
    "-l select=": [
        "", "1:ncpus=x", "1:mem=4GiB", "1:mem=4gib", "1:mem=1.5gb", "1:ncpus=1:ncpus=2",
        "0:ncpus=1", "1:ncpus=1+", "+1", "ncpus=2:2", "1:", "1:ncpus=", "1:ncpus", "1:ncpus=-1",
        "1:ncpus=2.5", "1:ngpus=x", "1:mem=x", "1:ompthreads=x", "1:mem=4 gb", "a:ncpus=1",
        "1.5:ncpus=1", "1:ncpus=1:mem=1gb:", "1::ncpus=1", "-1", "1:mem=4gbs", "1:ncpus=1k",
        "1:ncpus=1 -l ncpus=2", "1:ncpus=1, walltime=60", "1:ncpus=+2", "1:mem=+4gb",
        "2:system=polaris+1:ncpus=x", "1:ncpus=1:host='a+b'",
    ],
    "-l place=": [
        "scatter", "foo", "", "scatter:excl", "excl", "pack:shared", "free:exclhost", "group=host",
        "scatter:group=host", "vscatter", "vscatter:excl", "scatter:pack", "excl:scatter",
        "excl:excl", "scatter:excl:group=host", "shared", "Scatter", "scatter,ncpus=2",
        "scatter,nodes=2", "scatter,mem=1gb", "scatter,walltime=60",
    ],
    "": [
        "-l select=1:ncpus=1\n-l place=foo", "-l select=1:ncpus=1\n-l place=",
        "-l select=1:ncpus=1\n-l place=scatter:pack", "-l select=1:ncpus=1\n-l place=excl:excl",
        "-r n\n-J 0-2", "-J 0-2\n-r n", "-l", "-l select=1:ncpus=1\n-l nodes=1",
        "-l select=1:ncpus=1\n-l walltime=1:2:3:4", "-l walltime =60",
    ],
    "-l nodes=": ["0", "2:ppn=x"],
    "-l ncpus=": ["x"],
    "-l mem=": ["4GiB"],
    "-l ": ["ncpus"],
    "-l vmem=": ["1x"],
    "-k ": ["d", "x", "no", "dd"],
    "-j ": ["o", "e", "oo", "x", "oen"],
    "-m ": ["j", "an", "na", "x", "ja", "abej", "nb", "p"],
    "-p ": ["1024", "-1025", "x", "1.5", "5x"],
    "-S ": [
        "bash", "bin/bash", "", "./x", "bash@pb1", "/bin/bash,/bin/sh", "/bin/bash -l",
        "/bin/bash@", "'/bin/bash -l'",
    ],
    "-r ": ["Y", "yes", "x"],
    "-a ": ["x", "9999", "2561", "1", "120", "202612"],
    "-N ": [
        "a b", "a%b", "a[b]", "a/b", "a:b", "a,b", "a@b", "a#b", "a*b", "a=b", "a;b", "a!b", "a~b",
        "a(b)", "a -N b%c",
    ],
    "-P ": ["a:b", "a/b", "a b", "a,b", "a;b", "'a\"b'"],
    "-c ": ["u", "x", "c=x", "wc"],
    "-o ": ["/tmp/x y", ""],
    "-R ": ["x", "n"],
    "-h ": ["u", "o", "n"],
    "-W ": [
        "umask=x", "foo=bar", "depend=foo:1", "depend=afterok", "depend=afterok:abc", "block=x",
        "sandbox=x", "stagein=x", "run_count=x", "release_nodes_on_stageout=x",
        "tolerate_node_failures=x", "umask", "", "depend=AFTEROK:1", "depend=after:1;2",
        "umask=022 depend=afterok:1", "umask=022, depend=afterok:1", "create_resv_from_job=x",
        "interactive=x", "release_nodes_on_stageout=yes", "tolerate_node_failures=ALL",
        "depend=afterfoo:1", "depend=on:x", "sched_preempted=1", "stage=x", "group_list=", "block=",
    ],
    "-l min_walltime=": ["60,max_walltime=1h"],
    "-l naccelerators=": ["x"],
    "-l soft_walltime=": ["1h"],
}
TAKEN: dict[str, list[str]] = {
    "-l walltime=": [
        "60", "1:30", "01:00:00", "00:90:00", "1:2:3.5", "1.5", "5:", "", "99999999999", "1:99",
        "0", "00:00:00", "12:00:00 ", "2147483648", "'01:00:00'",
    ],
    "-l pcput=": ["1:00"],
    "-l cput=": ["100"],
    "-J ": [
        "0-3", "0-1", "1-4:2", "1-4%2", "1-4%0", "1-4:5", "0-9999", "1-2:1", "1-2:2", "01-03",
        "1-4:2%1",
    ],
    "-l select=": [
        "1", "2:ncpus=1", "1:mem=4g", "1:mem=4GB", "1:mem=4", "1:mem=4kw", "1:mem=4k", "1:mem=4m",
        "1:mem=4096M", "1:ncpus=1+1:ncpus=2", "ncpus=2", "1:mpiprocs=2", "1:ncpus=0", "1:host=pb1",
        "1:arch=linux", "1:mem=4TB", "1:mem=4tb", "1:mem=4pb", "1:naccelerators=1", "1:mem=4b",
        "1:mem=4w", "1:vmem=1gb", "1:ncpus=1,walltime=60",
    ],
    "": [
        "-l select=1:ncpus=1\n-l place=scatter", "-l select=1:ncpus=1\n-l place=scatter:excl",
        "-l select=1:ncpus=1\n-l place=excl", "-l select=1:ncpus=1\n-l place=pack:shared",
        "-l select=1:ncpus=1\n-l place=free:exclhost", "-l select=1:ncpus=1\n-l place=group=host",
        "-l select=1:ncpus=1\n-l place=scatter:group=host",
        "-l select=1:ncpus=1\n-l place=vscatter", "-l select=1:ncpus=1\n-l place=vscatter:excl",
        "-l select=1:ncpus=1\n-l place=excl:scatter",
        "-l select=1:ncpus=1\n-l place=scatter:excl:group=host",
        "-l select=1:ncpus=1\n-l place=shared", "-l select=1:ncpus=1\n-l place=Scatter",
        "-r y\n-J 0-2", "-c w\n-J 0-2", "-V\n-z", "-l  walltime=60", "-lwalltime=60",
    ],
    "-l nodes=": [
        "1", "2:ppn=2", "pb1", "", "1:ncpus=2", "pb1+pb2", "1#excl", "1:ppn=2+1:ppn=3", "1,ncpus=4",
    ],
    "-l ncpus=": ["2", "0"],
    "-l mem=": ["4gb"],
    "-l ": ["walltime", "cput", "'walltime=60 ncpus=2'"],
    "-l ngpus=": ["1"],
    "-l software=": ["x"],
    "-l file=": ["1gb"],
    "-l nice=": ["5"],
    "-l pvmem=": ["1gb"],
    "-l pmem=": ["1gb"],
    "-l host=": ["pb1"],
    "-l mpiprocs=": ["2"],
    "-k ": ["o", "e", "oe", "eo", "n", "doe", "od", "de", "do", "doee", "oo", "oed", "deo", "ed"],
    "-j ": ["oe", "eo", "n"],
    "-m ": ["a", "b", "e", "n", "abe", "bea", "aa"],
    "-p ": ["0", "1023", "-1024", "5", "+5", "01"],
    "-S ": ["/bin/bash", "/bin/bash@pb1", "/bin/bash,/bin/sh@pb1", "/bin/sh@a,/bin/bash@b"],
    "-r ": ["y", "n"],
    "-a ": ["1200", "12010101", "203012011200", "202612011200.30", "0000"],
    "-N ": ["a", "1a", "_a", "-a", "a.b", "a+b", "+a", ".a", "STDIN"],
    "-P ": ["proj", "a.b", "a_b", "_a", "a@b", "a#b", "a%b", "'a b'"],
    "-c ": ["n", "s", "c", "c=5", "w", "w=5"],
    "-o ": ["x", "/tmp/x", "pbhead:/tmp/x", "pb1:x"],
    "-R ": ["oe", "o", "e", "eo", "oo", "oeo"],
    "-W ": [
        "umask=022", "umask=999", "umask=8", "depend=afterok:1", "sandbox=PRIVATE", "stagein=a@b:c",
        "project=x", "run_count=1", "release_nodes_on_stageout=true", "tolerate_node_failures=all",
        "group_list=pbu", "umask=0022", "depend=on:2", "depend=afterany:1:2",
        "depend=afterok:1,afterany:2", "depend=before:1", "depend=afterok:1@pbhead",
        "create_resv_from_job=1", "no_stdio_sockets=1", "cred=x", "release_nodes_on_stageout=T",
        "release_nodes_on_stageout=1", "tolerate_node_failures=job_start", "sandbox=private",
        "sandbox=HOME", "depend=runone:1", "depend=beforeany:1", "depend=afterok:1[]",
        "Account_Name=x", "Job_Name=x", "Priority=5", "Shell_Path_List=/bin/sh", "Mail_Points=n",
        "Rerunable=y", "Keep_Files=oe", "Hold_Types=u", "Checkpoint=n", "Execution_Time=1200",
        "umask=0", "umask=-1", "umask=77777", "stagein=a@b:c,stageout=a@b:d", "project=", "umask=",
    ],
    "-l min_walltime=": ["60"],
}
# fmt: on


def headers(table: dict[str, list[str]]) -> list[str]:
    """The directives of a table, one header each, without their markers."""
    return [option + value for option, values in table.items() for value in values]
