"""The server, the scheduler and the moms of the stand-in of OpenPBS 23.06."""

from __future__ import annotations

import copy
import os
import pwd
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from . import nodes
from .folder import ENGINE, Folder, Message
from .pbs_facts import DEFAULTS, HOST, Job, exec_vnode, value_of
from .pbs_options import size
from .server import Server, append_file, exit_status, user_name


def refusal(text: str, status: int) -> Message:
    """An answer that ends a command."""
    return {"error": text, "status": status}


class PbsServer(Server):
    """Without history, ended jobs are kept for dependencies and `-W block` only."""

    kind: ClassVar[str] = "pbs"
    defaults: ClassVar[Message] = DEFAULTS

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._lost: set[str] = set()
        for job in self.jobs.values():
            if job["state"] in "RE":  # a server that was killed took its jobs along
                self._finish(job, -20)

    def active(self) -> bool:
        return any(job["state"] != "F" for job in self.jobs.values())

    def handle(self, request: Message) -> Message:
        operation = getattr(self, f"_op_{request['op']}", None)
        if operation is None:
            return refusal(f"unknown operation {request['op']}", 1)
        return operation(request)

    def find(self, name: str) -> Job | None:
        """By `12`, `12.head` or `12.head@head`."""
        name = name.partition("@")[0]
        return self.jobs.get(name if "." in name else f"{name}.{HOST}")

    # ---- qsub ------------------------------------------------------------------------------------

    def _op_submit(self, request: Message) -> Message:
        config, job = self.config, request["job"]
        if config["refuse_root"] and os.getuid() == 0:
            return refusal("qsub: Bad UID for job execution", 175)
        if request["from_job"] and not config["may_submit_from_nodes"]:
            return refusal("qsub: Bad UID for job execution", 175)
        if job["queue"] and job["queue"] not in config["queues"]:
            return refusal("qsub: Unknown queue", 170)
        job["queue"] = job["queue"] or next(iter(config["queues"]))
        for name in config["required"]:
            if name == "Account_Name" and not job["account"]:
                return refusal("qsub: Account_Name is required", 65)
            if name != "Account_Name" and name not in job["resources"]:
                return refusal(f"qsub: Resource: {name} is required to be set.", 65)
        queue = config["queues"][job["queue"]]
        longest = queue.get("max_walltime")
        if longest is not None and value_of(job["walltime"], 0) > longest:
            return refusal("qsub: Job violates queue and/or server resource limits", 188)
        waiting = [
            j
            for j in self.jobs.values()
            if j["queue"] == job["queue"] and j["state"] != "F" and j["parent"] is None
        ]
        if len(waiting) >= value_of(queue.get("max_queued"), 1 << 30):
            return refusal("qsub: Maximum number of jobs already in queue", 198)
        identity = f"{self.counter}{'' if job['array'] is None else '[]'}.{HOST}"
        job.update(
            id=identity,
            seq=self.counter,
            owner=f"{user_name()}@{HOST}",
            state="Q",
            substate=10,
            exit_status=None,
            comment=None,
            ctime=time.time(),
            stime=None,
            obittime=None,
            mtime=time.time(),
            run_count=0,
            vnodes=[],
            session=None,
            killing=None,
            started=False,
            outcome=None,
            forgotten=False,
            stageout=None,
            used=0.0,
            attached=False,
            parent=None,
        )
        self.counter += 1
        job["depend"] = [self._dependency(kind, name) for kind, name in job["depend"]]
        self.jobs[identity] = job
        subjobs = [] if job["array"] is None else job["array"]["indices"]
        for one in [*(self._subjob(job, index) for index in subjobs), job]:
            self._keep(one)
        return {"id": identity, "message": config["hook_message"]}

    def _keep(self, job: Job) -> None:
        """The copy of a job's script, and where its output goes."""
        ending = f".{job['index']}" if job["parent"] else ""
        for key in ("output", "error"):
            default = os.path.join(job["cwd"], f"{job['name']}.{key[0]}{job['seq']}{ending}")
            job[key] = job[key] or default
            if job["parent"]:
                job[key] = job[key].replace("^array_index^", str(job["index"]))
        if job["script"] is not None:
            folder = self.folder.path / "mom_priv" / "jobs"
            folder.mkdir(parents=True, exist_ok=True)
            script = folder / f"{job['id']}.SC"
            script.write_text(job["script"], encoding="utf-8", errors="surrogateescape")
            script.chmod(0o700)
            job["script"] = str(script)

    # ---- arrays: a parent, which never runs, and a job for each index ----------------------------

    def _subjob(self, parent: Job, index: int) -> Job:
        job = copy.deepcopy(parent)
        identity = f"{parent['seq']}[{index}].{HOST}"
        job.update(id=identity, parent=parent["id"], index=index, array=None)
        own = {"PBS_ARRAY_INDEX": str(index), "PBS_ARRAY_ID": parent["id"]}
        job["variables"] = {**job["variables"], **own}
        self.jobs[identity] = job
        return job

    def _subjobs(self, parent: Job) -> list[Job]:
        if parent["array"] is None:
            return []
        names = (f"{parent['seq']}[{index}].{HOST}" for index in parent["array"]["indices"])
        return [self.jobs[name] for name in names]

    def _is_full(self, parent: Job) -> bool:
        most = parent["array"]["most"]
        running = sum(job["state"] in "RE" for job in self._subjobs(parent))
        return most is not None and running >= most

    def _follow_subjobs(self, parent: Job) -> None:
        """A parent has begun with the first of its subjobs, and ends with the last one."""
        subjobs = self._subjobs(parent)
        if parent["state"] in "QHW" and any(job["started"] for job in subjobs):
            when = time.strftime("%a %b %d at %H:%M")
            parent.update(state="B", substate=70, started=True, stime=time.time())
            parent["comment"] = f"Job Array Began at {when}"
        if any(job["state"] != "F" for job in subjobs):
            return
        deleted = parent["killing"] is not None
        failed = any(job["exit_status"] != 0 for job in subjobs)
        if parent["started"]:
            parent["exit_status"] = int(failed)
            how = f"terminated by {parent['owner']}" if deleted else "finished"
            parent["comment"] += " and failed" if failed and not deleted else f" and {how}"
            parent["outcome"] = "failed" if failed or deleted else "ok"
        else:
            parent["outcome"] = "never"
        parent.update(state="F", substate=91 if deleted else 93 if failed else 92)
        parent["obittime"] = time.time()
        for job in [parent, *subjobs]:
            self._forget(job)

    def _dependency(self, kind: str, name: str) -> Message:
        """At submission: a parent that is over decides at once, where it is still known."""
        parent = self.find(name)
        entry = {"kind": kind, "on": name if parent is None else parent["id"], "settled": None}
        if parent is None or parent["forgotten"]:
            entry["settled"] = "dropped"
        elif parent["state"] == "F" and parent["outcome"] == "never":
            entry["settled"] = "met"
        return entry

    def _op_wait(self, request: Message) -> Message:
        """For `-W block=true`, and for tests: also of a job that qstat no longer shows."""
        job = self.jobs[request["id"]]
        return {
            "ended": job["state"] == "F",
            "exit_status": job["exit_status"],
            "comment": job["comment"],
            "state": job["state"],
            "vnodes": job["vnodes"],
        }

    # ---- dependencies ----------------------------------------------------------------------------

    def _settle(self, entry: Message) -> str | None:
        """`met`, `dropped`, or None for what must still wait."""
        if entry["settled"]:
            return entry["settled"]
        parent = self.jobs.get(entry["on"])
        if parent is None:
            return None
        kind, outcome = entry["kind"], parent["outcome"]
        if kind == "after" and parent["started"]:
            return "met"
        if outcome is None or outcome == "never":
            return None
        if outcome == "dropped":
            return "dropped"
        wanted = {"afterok": ("ok",), "afternotok": ("failed",)}.get(kind, ("ok", "failed"))
        return "met" if outcome in wanted else "dropped"

    def _settle_dependencies(self) -> None:
        again = True
        while again:
            again = False
            for job in self.jobs.values():
                if job["state"] not in "QHW":
                    continue
                for entry in job["depend"]:
                    entry["settled"] = self._settle(entry)
                states = [entry["settled"] for entry in job["depend"]]
                if "dropped" in states:
                    job.update(state="F", substate=92, outcome="dropped")
                    job["hold"] = "s"
                    self._forget(job)
                    again = True
                elif job["hold"] == "u":
                    job.update(state="H", substate=20)
                elif job["not_before"] > time.time():
                    job.update(state="W", substate=30)
                elif None in states:
                    job.update(state="H", substate=22)
                else:
                    job.update(state="Q", substate=10)

    # ---- from the queue to the nodes -------------------------------------------------------------

    def schedule(self) -> None:
        self._settle_dependencies()
        config = self.config
        for parent in [job for job in self.jobs.values() if job["array"] is not None]:
            if parent["state"] != "F":
                self._follow_subjobs(parent)
        for job in sorted(self.jobs.values(), key=lambda job: job["seq"]):
            if job["state"] != "Q" or job["array"] is not None:
                continue
            if job["parent"] and self._is_full(self.jobs[job["parent"]]):
                continue
            names = [name for name in config["nodes"] if name not in self._lost]
            empty = {name: _amounts(config["node_resources"]) for name in config["nodes"]}
            chosen, missing = _place(job, {name: dict(empty[name]) for name in names}, set())
            if chosen is None:
                _, never = _place(job, {name: dict(empty[name]) for name in empty}, set())
                if never == "nodes":
                    job["comment"] = "Can Never Run: Not enough total nodes available"
                elif never:
                    job["comment"] = f"Can Never Run: {_shortage(job, never, empty, empty)}"
                else:
                    job["comment"] = None
                continue
            free = {name: dict(empty[name]) for name in names}
            closed: set[str] = set()
            for other in self.jobs.values():
                if other["state"] in "RE":
                    for name, chunk in other["vnodes"]:
                        _take(free.get(name), chunk)
                        if "excl" in other["place"]:
                            closed.add(name)
            if "excl" in job["place"]:
                closed.update(name for name in names if free[name] != empty[name])
            chosen, missing = _place(job, free, closed)
            if chosen is None:
                what = "ncpus" if missing == "nodes" else missing
                job["comment"] = f"Not Running: {_shortage(job, what, free, empty)}"
                continue
            self._allocate(job, chosen, config["start_delay"])

    def _allocate(self, job: Job, chosen: list[tuple[str, Message]], delay: float) -> None:
        job.update(vnodes=chosen, state="R", substate=41, started=True, killing=None)
        job["stime"] = time.time()
        job["run_count"] += 1
        when = time.strftime("%a %b %d at %H:%M")
        job["comment"] = f"Job run at {when} on {exec_vnode(job)}"
        run = job["run_count"]
        self.after(delay, lambda: self._start(job, run))

    def _start(self, job: Job, run: int) -> None:
        if job["state"] != "R" or job["run_count"] != run or job["session"] is not None:
            return
        if job["killing"]:
            self._finish(job, 265)
            return
        config = self.config
        base = self.folder.path
        nodefile = base / "aux" / job["id"]
        temporary = base / "tmp" / f"pbs.{job['id']}"
        for folder in (nodefile.parent, base / "spool", temporary):
            folder.mkdir(parents=True, exist_ok=True)
        lines = [name for name, chunk in job["vnodes"] for _ in range(chunk.get("mpiprocs", 1))]
        nodefile.write_text("".join(f"{name}\n" for name in lines))
        account = pwd.getpwuid(os.getuid())
        home = config["home"] or account.pw_dir
        first, chunk = job["vnodes"][0]
        threads = str(chunk.get("ompthreads", chunk["ncpus"]))
        environ = {
            "PATH": "/bin:/usr/bin",
            **config["login_environment"],
            **job["variables"],
            "ENVIRONMENT": "BATCH",
            "HOME": home,
            "LOGNAME": account.pw_name,
            "USER": account.pw_name,
            "SHELL": config["shell"],
            "TMPDIR": str(temporary),
            "NCPUS": threads,
            "OMP_NUM_THREADS": threads,
            "PBS_ENVIRONMENT": "PBS_INTERACTIVE" if job["interactive"] else "PBS_BATCH",
            "PBS_JOBCOOKIE": f"{job['seq']:032X}",
            "PBS_JOBDIR": home,
            "PBS_JOBID": job["id"],
            "PBS_JOBNAME": job["name"],
            "PBS_MOMPORT": "15003",
            "PBS_NODEFILE": str(nodefile),
            "PBS_NODENUM": "0",
            "PBS_O_QUEUE": job["queue"],
            "PBS_QUEUE": job["queue"],
            "PBS_TASKNUM": "1",
        }
        shell = job["shell"] or config["shell"]
        helper = [sys.executable, "-I", "-S", str(ENGINE / "pbs_shell.py")]
        if job["command"]:
            launch = [*helper, "plain", *job["command"]]
        else:
            launch = [*helper, "login", shell]
        command = nodes.on_node(first, config["local_nodes"], launch)
        # In front: on a machine with a real PBS the profile has added the real commands by now.
        extend = f'PATH={shlex.quote(":".join(config["path"]))}":$PATH"; export PATH\n'
        profile = extend if config["path"] else ""
        job["substate"] = 42
        if job["interactive"]:
            # A command that was given behind `--` has no login shell, and nobody types for it.
            typed = "" if job["command"] else profile
            job["launch"] = {"command": command, "environ": environ, "profile": typed}
            self._arm_walltime(job)
            return
        # The login shell reads the script's name from a pipe, which the script then finds empty.
        reading, writing = os.pipe()
        if not job["command"]:
            os.write(writing, f"{profile}{shlex.quote(job['script'])}\n".encode())
        os.close(writing)
        stdout, stderr = self._open_outputs(job)
        if config["prologue_noise"]:
            os.write(stdout, config["prologue_noise"].encode())
        try:
            job["session"] = self.spawn(
                command,
                lambda status: self._leader_ended(job, status),
                environ=environ,
                cwd=home if os.path.isdir(home) else "/",
                stdin=reading,
                stdout=stdout,
                stderr=stderr,
                umask=job["umask"],
            )
        finally:
            for descriptor in {reading, stdout, stderr}:
                os.close(descriptor)
        self._arm_walltime(job)

    def _arm_walltime(self, job: Job) -> None:
        if job["walltime"] is not None:
            run = job["run_count"]
            late = self.config["walltime_lateness"]
            self.after(job["walltime"] + late, lambda: self._walltime(job, run))

    # ---- interactive jobs: the shell is on the terminal of qsub --------------------------------

    def _op_launch(self, request: Message) -> Message:
        return {"launch": self.jobs[request["id"]].get("launch")}

    def _op_attached(self, request: Message) -> Message:
        job = self.jobs[request["id"]]
        job["session"] = request["pid"]
        self._watch_terminal(job, request["pid"])
        return {}

    def _watch_terminal(self, job: Job, session: int) -> None:
        """Where qsub was killed, nobody says that the shell ended with it."""

        def look() -> None:
            if job["state"] != "R" or job["session"] != session:
                return
            if self._session(job):
                self._watch_terminal(job, session)
            elif not job["killing"]:
                self._finish(job, 0)

        self.after(self.config["poll"], look)

    def _op_detached(self, request: Message) -> Message:
        job = self.jobs[request["id"]]
        if job["state"] == "R":
            self._leader_ended(job, request["status"] if job["killing"] else 0)
        return {}

    # ---- output ----------------------------------------------------------------------------------

    def _open_outputs(self, job: Job) -> tuple[int, int]:
        paths = {}
        home = self.config["home"] or pwd.getpwuid(os.getuid()).pw_dir
        kept, direct = job["keep"], "d" in job["keep"]
        for letter, key in (("o", "output"), ("e", "error")):
            if letter in kept and direct:
                paths[letter] = _final_path(job, key)
            elif letter in kept:
                paths[letter] = f"{home}/{job['name']}.{letter}{job['seq']}"
            else:
                ending = "OU" if letter == "o" else "ER"
                paths[letter] = str(self.folder.path / "spool" / f"{job['id']}.{ending}")
        if job["join"] in ("oe", "eo"):
            paths["e"] = paths["o"] = paths[job["join"][0]]
        job["opened"] = paths
        stdout = append_file(paths["o"], job["umask"])
        stderr = stdout if paths["e"] == paths["o"] else append_file(paths["e"], job["umask"])
        return stdout, stderr

    def _deliver(self, job: Job) -> bool:
        """Copy what lies in the spool. False where that is impossible."""
        spool, done = self.folder.path / "spool", True
        # Joined output is one file, that of the first letter.
        letters = {"oe": "o", "eo": "e"}.get(job["join"], "oe")
        for letter in letters:
            source = Path(job.get("opened", {}).get(letter, ""))
            if source.parent != spool or not source.exists():
                continue
            if letter in job["remove"]:
                source.unlink()
                continue
            target = _final_path(job, "output" if letter == "o" else "error")
            try:
                if target != os.devnull:
                    shutil.copyfile(source, target)
                    os.chmod(target, 0o666 & ~job["umask"])
                source.unlink()
            except OSError:
                done = False
        return done

    # ---- signals ---------------------------------------------------------------------------------

    def _session(self, job: Job) -> list[nodes.Process]:
        return [] if job["session"] is None else nodes.in_session(job["session"])

    def _op_delete(self, request: Message) -> Message:
        job, force = self.jobs[request["id"]], request["force"]
        by = f"terminated by {job['owner']}"
        if job["array"] is not None:
            job["killing"] = {"comment": by}
            for subjob in self._subjobs(job):
                self._op_delete({"id": subjob["id"], "force": force})
            return {}
        if job["state"] in "QHW":
            if job["comment"] and job["comment"].startswith("Job run at"):
                job["comment"] += f" and {by}"
            job["outcome"] = "never"
            job.update(state="F", substate=91, obittime=time.time())
            self._forget(job)
        elif job["state"] == "R":
            self._kill(job, 91, by, 0.0 if force else self.config["kill_delay"])
        return {}

    def _walltime(self, job: Job, run: int) -> None:
        if job["state"] != "R" or job["run_count"] != run or job["killing"]:
            return
        used = int(time.time() - job["stime"])
        if not job["interactive"]:
            descriptor = append_file(job["opened"]["e"], job["umask"])
            text = f"=>> PBS: job killed: walltime {used} exceeded limit {job['walltime']}\n"
            os.write(descriptor, text.encode())
            os.close(descriptor)
        self._kill(job, 93, "exceeded resource walltime", self.config["kill_delay"] / 2)

    def _kill(self, job: Job, substate: int, comment: str, delay: float) -> None:
        """TERM now, KILL later. What made a session of its own hears nothing."""
        first = job["killing"] is None
        if first or delay == 0:
            job["killing"] = {"substate": substate, "comment": comment}
        run = job["run_count"]
        if delay > 0:
            nodes.send(self._session(job), signal.SIGTERM)
        if delay == 0:
            self._finish_killed(job, run)
        elif first:
            self.after(delay, lambda: self._finish_killed(job, run))
            self._look_again(job, run)

    def _look_again(self, job: Job, run: int) -> None:
        def look() -> None:
            if job["state"] == "R" and job["run_count"] == run and job["killing"]:
                if job["session"] is None or self._session(job):
                    self._look_again(job, run)
                else:
                    self._finish_killed(job, run)

        self.after(self.config["poll"], look)

    def _finish_killed(self, job: Job, run: int) -> None:
        if job["state"] != "R" or job["run_count"] != run:
            return
        if job["session"] is None and not job["interactive"]:
            return  # it has not begun: `_start` sees to it
        nodes.send(self._session(job), signal.SIGKILL)
        killing = job["killing"]
        if killing.get("requeue"):
            self._requeue(job)
            return
        status = -29 if killing["substate"] == 93 else value_of(killing.get("leader"), 265)
        self._finish(job, status)

    def _op_signal(self, request: Message) -> Message:
        job = self.jobs[request["id"]]
        for subjob in self._subjobs(job):
            self._op_signal({**request, "id": subjob["id"]})
        if job["state"] == "B":
            return {}
        if job["state"] != "R" or job["session"] is None:
            return refusal(f"qsig: Request invalid for state of job  {job['id']}", 168)
        nodes.send(self._session(job), request["number"])
        return {}

    def _leader_ended(self, job: Job, status: int) -> None:
        """The session leader is gone. Unless it was killed, so is the job."""
        code = 256 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else exit_status(status)
        if job["state"] != "R":
            return
        if job["killing"]:
            job["killing"]["leader"] = code
            return
        nodes.send(self._session(job), signal.SIGKILL)
        self._finish(job, code)

    # ---- the end ---------------------------------------------------------------------------------

    def _finish(self, job: Job, status: int) -> None:
        """To `E`, and when the output is delivered to `F`."""
        killing = job["killing"] or {}
        failed = "finished" if status == 0 else "failed"
        job.update(state="E", substate=51, exit_status=status, obittime=time.time())
        job["used"] = time.time() - value_of(job["stime"], time.time())
        if status != -20:
            job["comment"] = f"{job['comment']} and {killing.get('comment', failed)}"
        final = killing.get("substate", 92 if status == 0 else 93)
        job["final"] = final
        self.after(self.config["stageout_delay"], lambda: self._stage_out(job))

    def _stage_out(self, job: Job) -> None:
        config = self.config
        done = self._deliver(job)
        if not done and time.time() < job["obittime"] + config["stageout_retries"]:
            self.after(config["stageout_delay"], lambda: self._stage_out(job))
            return
        if not done:
            undelivered = self.folder.path / "undelivered"
            undelivered.mkdir(exist_ok=True)
            for left in (self.folder.path / "spool").glob(f"{job['id']}.*"):
                left.replace(undelivered / left.name)
        if not {"o", "e"} <= set(job["remove"]):
            job["stageout"] = int(done)
        shutil.rmtree(self.folder.path / "tmp" / f"pbs.{job['id']}", ignore_errors=True)
        (self.folder.path / "aux" / job["id"]).unlink(missing_ok=True)
        job["outcome"] = "ok" if job["exit_status"] == 0 else "failed"
        job.update(state="F", substate=job["final"], session=None, mtime=time.time())
        self._forget(job)

    def _forget(self, job: Job) -> None:
        """Where there is no history. A subjob is shown as long as its array is there."""
        if job["parent"] and self.jobs[job["parent"]]["state"] != "F":
            return
        job["mtime"] = time.time()
        job["forgotten"] = not self.config["history"]
        if job["script"]:
            Path(job["script"]).unlink(missing_ok=True)

    # ---- other requests --------------------------------------------------------------------------

    def _op_list(self, request: Message) -> Message:
        return {
            "jobs": [self._shown(job) for job in self.jobs.values() if not job["forgotten"]],
            "forgotten": [job["id"] for job in self.jobs.values() if job["forgotten"]],
            "queues": list(self.config["queues"]),
        }

    def _shown(self, job: Job) -> Job:
        """As qstat shows it: what is over in an array that is not is expired."""
        if job["parent"] and job["state"] == "F" and self.jobs[job["parent"]]["state"] != "F":
            return {**job, "state": "X"}
        if job["array"] is None:
            return job
        states = [subjob["state"] for subjob in self._subjobs(job)]
        counts = {
            "Queued": sum(state in "QHW" for state in states),
            "Running": states.count("R"),
            "Exiting": states.count("E"),
            "Expired": states.count("F"),
        }
        remaining = [
            index
            for index, state in zip(job["array"]["indices"], states, strict=True)
            if state in "QHW"
        ]
        shown = {
            "array": "True",
            "array_state_count": " ".join(f"{name}:{count}" for name, count in counts.items()),
            "array_indices_remaining": ",".join(map(str, remaining)) or "-",
        }
        return {**job, "array_shown": shown}

    def _op_hold(self, request: Message) -> Message:
        return self._set_hold(request["id"], "u")

    def _op_release(self, request: Message) -> Message:
        return self._set_hold(request["id"], "n")

    def _set_hold(self, identity: str, hold: str) -> Message:
        job = self.jobs[identity]
        if job["state"] not in "QHWRB":
            return {"bad_state": True}
        for one in [job, *self._subjobs(job)]:
            one["hold"] = hold
        return {}

    def _op_forget(self, request: Message) -> Message:
        """`qdel -x`."""
        self.jobs[request["id"]]["forgotten"] = True
        return {}

    def _op_rerun(self, request: Message) -> Message:
        """What an operator may: end a job and put it back into the queue."""
        job = self.jobs[request["id"]]
        if job["state"] != "R":
            return {"bad_state": True}
        if not job["rerunable"]:
            return {"not_rerunable": True}
        self._kill(job, 0, "", self.config["kill_delay"])
        job["killing"]["requeue"] = True
        return {}

    def _op_lose_node(self, request: Message) -> Message:
        """A node dies with all that runs on it. Its jobs notice after `node_fail_requeue`; the loss
        of another node than a job's first is never noticed."""
        node = request["node"]
        self._lost.add(node)
        for job in self.jobs.values():
            if job["state"] == "R" and job["vnodes"][0][0] == node:
                # Not `_leader_ended`: the mom that would tell is dead.
                if job["session"] is not None:
                    self._watched.pop(job["session"], None)
                    nodes.send(self._session(job), signal.SIGKILL)
                self.after(self.config["node_fail_requeue"], _bound(self._lost_job, job))
        return {}

    def _op_restore_node(self, request: Message) -> Message:
        self._lost.discard(request["node"])
        return {}

    def _lost_job(self, job: Job) -> None:
        if job["state"] != "R":
            return
        if job["rerunable"]:
            job["exit_status"] = -20
            self._requeue(job)
        else:
            self._finish(job, -20)

    def _requeue(self, job: Job) -> None:
        job.update(state="Q", substate=10, session=None, killing=None, vnodes=[])


def _bound(action: Callable[[Job], None], job: Job) -> Callable[[], None]:
    return lambda: action(job)


def _final_path(job: Job, key: str) -> str:
    path = job[key]
    if os.path.isdir(path):
        return os.path.join(path, f"{job['id']}.{'OU' if key == 'output' else 'ER'}")
    return path


# ---- placing chunks ------------------------------------------------------------------------------


def _amounts(resources: Message) -> dict[str, int]:
    return {name: _number(value) for name, value in resources.items()}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else size(str(value)) or 0


def _take(free: dict[str, int] | None, chunk: Message) -> None:
    if free is not None:
        for name in free:
            free[name] -= _number(chunk.get(name, 0))


def _missing(free: dict[str, int], chunk: Message) -> str | None:
    """The first resource that a node has too little of."""
    for name, amount in free.items():
        if _number(chunk.get(name, 0)) > amount:
            return name
    return None


def _shortage(
    job: Job, name: str, free: dict[str, dict[str, int]], all_nodes: dict[str, dict[str, int]]
) -> str:
    """Requested, available and total. Of resources that a site defines nothing follows but a
    blank."""
    text = f"Insufficient amount of resource: {name}"
    if name not in ("ncpus", "mem"):
        return f"{text} "
    asked = sum(_number(chunk.get(name, 0)) for chunk in job["chunks"])
    numbers = [asked, *(sum(one.get(name, 0) for one in of.values()) for of in (free, all_nodes))]
    shown = [_size_text(number) if name == "mem" else str(number) for number in numbers]
    return f"{text} (R: {shown[0]} A: {shown[1]} T: {shown[2]})"


def _size_text(number: int) -> str:
    """`16gb`."""
    for power, unit in ((4, "tb"), (3, "gb"), (2, "mb"), (1, "kb")):
        if number and number % 1024**power == 0:
            return f"{number // 1024**power}{unit}"
    return f"{number}b"


def _place(
    job: Job, free: dict[str, dict[str, int]], closed: set[str]
) -> tuple[list[tuple[str, Message]] | None, str]:
    """A node for each chunk, or what there is too little of."""
    spread = "scatter" in job["place"]
    packed = "pack" in job["place"]
    chosen: list[tuple[str, Message]] = []
    chunks, missing = job["chunks"], "nodes"
    if packed:
        total: dict[str, int] = {}
        for chunk in chunks:
            for key, value in chunk.items():
                if key not in ("host", "vnode", "arch"):
                    total[key] = total.get(key, 0) + _number(value)
        for name, amounts in free.items():
            lacking = _missing(amounts, total)
            if lacking is None and name not in closed:
                return [(name, chunk) for chunk in chunks], ""
            missing = lacking or missing
        return None, missing
    used: set[str] = set()
    for chunk in chunks:
        for name, amounts in free.items():
            if name in closed or (spread and name in used):
                continue
            if chunk.get("host", name) != name or chunk.get("vnode", name) != name:
                continue
            lacking = _missing(amounts, chunk)
            if lacking is None:
                _take(amounts, chunk)
                used.add(name)
                chosen.append((name, chunk))
                break
            missing = lacking
        else:
            return None, missing
    return chosen, ""
