"""The server side of the stand-in of Cobalt 1.0.33 in cluster mode."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from . import nodes
from .cobalt_facts import DEFAULTS, stamp
from .folder import ENGINE, Folder, Message
from .server import Server, append_file, exit_status, user_name
from .texts import hours

Job = dict[str, Any]


def fault(code: int, text: str, method: str) -> Message:
    """What a client prints where a component refuses."""
    return {"fault": f"component error: XMLRPC failure <Fault {code}: {text!r}> in {method}"}


class CobaltServer(Server):
    """Jobs are forgotten when they end."""

    kind: ClassVar[str] = "cobalt"
    defaults: ClassVar[Message] = DEFAULTS

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._unfinished_logs = 0
        self._cleaning: dict[str, list[str]] = {}
        # A server that was killed took its jobs along.
        for job_id in [key for key, job in self.jobs.items() if job["state"] in _ON_NODES]:
            del self.jobs[job_id]

    def active(self) -> bool:
        return bool(self.jobs or self._unfinished_logs or self._cleaning)

    def handle(self, request: Message) -> Message:
        if request.get("from_job") and not self.config["may_submit_from_nodes"]:
            return {"unreachable": True}
        operation = getattr(self, f"_op_{request['op']}", None)
        if operation is None:
            return {"fault": f"unknown operation {request['op']}"}
        return operation(request)

    # ---- requests --------------------------------------------------------------------------------

    def _op_submit(self, request: Message) -> Message:
        config, job = self.config, request["job"]
        if not 0 < job["nodes"] <= len(config["nodes"]):
            return {"fault": "node count out of realistic range"}
        if 0 < job["minutes"] < config["minimum_minutes"]:
            return fault(1004, "Walltime less than minimum", "system.validate_job")
        if job["queue"] not in config["queues"]:
            text = f"trying to add job to non-existent queue '{job['queue']}'"
            return fault(1001, text, "queue-manager.add_jobs")
        queue = config["queues"][job["queue"]]
        if queue.get("state") == "dead":
            text = f"The '{job['queue']}' queue is dead"
            return fault(1001, text, "queue-manager.add_jobs")
        # qstat goes on to show what was asked for, where the queue has no limit of its own.
        job["unlimited"] = job["minutes"] == 0 and not queue.get("max_minutes")
        if job["minutes"] == 0:
            job["minutes"] = queue.get("max_minutes") or config["max_walltime"] or 0
            if not job["minutes"]:
                text = "Walltime of 0 needs a limit of the queue"
                return fault(1001, text, "queue-manager.add_jobs")
        broken = self._queue_limits(queue, job)
        if broken:
            return fault(1001, broken, "queue-manager.add_jobs")
        self.counter += 1
        identity = str(self.counter)
        self._fill(job, identity)
        self.jobs[identity] = job
        unknown = [
            name for name in job["dependencies"] if name not in self.jobs or name == identity
        ]
        warnings = []
        if unknown:
            text = f"WARNING: dependencies {':'.join(unknown)} "
            warnings += [f"{text}do not match jobs currently in the queue"] * job["looked_up"]
        return {"job": job, "warnings": warnings, "message": config["server_message"]}

    def _queue_limits(self, queue: Message, job: Job) -> str:
        said = ""
        name, most, least = job["queue"], queue.get("max_minutes"), queue.get("min_minutes")
        if most is not None and job["minutes"] > most:
            said += f"Walltime greater than the '{name}' queue max walltime of {hours(most * 60)}\n"
        if least is not None and job["minutes"] < least:
            said += f"Walltime less than the '{name}' queue min walltime of {hours(least * 60)}\n"
        limit = queue.get("max_queued")
        mine = [other for other in self.jobs.values() if other["queue"] == name]
        if limit is not None and len(mine) >= limit:
            said += f"The limit of {limit} jobs per user in the '{name}' queue has been reached\n"
        return said

    def _fill(self, job: Job, identity: str) -> None:
        def named(text: str) -> str:
            return re.sub(r"\$(jobid|COBALT_JOBID)\b", identity, text)

        job["id"] = identity
        job["env"] = {name: named(value) for name, value in job["env"].items()}
        prefix = named(job["prefix"]) if job["prefix"] else identity
        for key, ending in (("output", "output"), ("error", "error"), ("debuglog", "cobaltlog")):
            path = named(job[key]) if job[key] else f"{prefix}.{ending}"
            job[key] = str(Path(job["cwd"], path))
        job["name"] = named(job["name"]) if job["name"] else "N/A"
        job.update(
            user=user_name(),
            submitted=time.time(),
            started=None,
            location=[],
            met=[],
            broken=False,
            failed_dependency=False,
            pid=None,
            code=None,
            ending=None,
        )
        job["state"] = self._waiting_state(job)

    def _op_list(self, request: Message) -> Message:
        return {"jobs": list(self.jobs.values()), "queues": list(self.config["queues"])}

    def _op_delete(self, request: Message) -> Message:
        deleted = []
        for identity in request["ids"]:
            job = self.jobs.get(identity)
            if job is None:
                continue
            deleted.append({"id": identity, "user": job["user"]})
            if job["code"] is not None:
                continue  # it lingers only
            if job["state"] == "running":
                self._end_early(
                    job, f"user delete requested with signal SIGTERM by user {job['user']}"
                )
            elif job["state"] == "starting":
                job["ending"] = "user delete requested with signal SIGTERM by user " + job["user"]
            elif job["state"] == "killing":
                self._log(job, "Info: user delete request already pending with signal SIGTERM")
            else:
                self._log(job, "Info: user delete requested; removing job from the queue")
                self._gone(job, None)
        return {"deleted": deleted}

    def _op_hold(self, request: Message) -> Message:
        return self._set_hold(request["ids"], held=True)

    def _op_release(self, request: Message) -> Message:
        if request.get("dependencies"):
            return self._op_undepend(request)
        return self._set_hold(request["ids"], held=False)

    def _set_hold(self, identities: list[str], *, held: bool) -> Message:
        changed, unknown = [], []
        for identity in identities:
            job = self.jobs.get(identity)
            if job is None:
                unknown.append(identity)
            elif job["state"] not in _ON_NODES:
                job["held"] = held
                changed.append(identity)
        return {"changed": changed, "unknown": unknown}

    def _op_undepend(self, request: Message) -> Message:
        known = [self.jobs[name] for name in request["ids"] if name in self.jobs]
        for job in known:
            job.update(dependencies=[], met=[], broken=False, failed_dependency=False)
        return {
            "changed": [job["id"] for job in known],
            "unknown": [name for name in request["ids"] if name not in self.jobs],
        }

    def _op_lose_node(self, request: Message) -> Message:
        """All processes on a node are killed, as when it crashes and is back at once."""
        node = request["node"]
        for job in self.jobs.values():
            if job["code"] is None and job["state"] == "running" and job["location"][0] == node:
                # Parents first: none may tell how its child ended.
                below = nodes.descendants(job["pid"])
                nodes.send([*below, *self._processes(job["id"])], signal.SIGKILL)
        return {}

    # ---- from the queue to the nodes -------------------------------------------------------------

    def _waiting_state(self, job: Job) -> str:
        if job["held"]:
            return "user_hold"
        if job["failed_dependency"]:
            return "dep_fail"
        if set(job["dependencies"]) - set(job["met"]):
            return "dep_hold"
        return "queued"

    def schedule(self) -> None:
        config = self.config
        busy = {name for job in self.jobs.values() for name in job["location"]}
        busy.update(name for names in self._cleaning.values() for name in names)
        for job in sorted(self.jobs.values(), key=lambda job: int(job["id"])):
            if job["state"] in _ON_NODES:
                continue
            job["state"] = self._waiting_state(job)
            queue = config["queues"].get(job["queue"], {})
            if job["state"] != "queued" or queue.get("state", "running") != "running":
                continue
            wanted = job["attrs"].get("location")
            usable = [name for name in config["nodes"] if name not in busy]
            if wanted is not None:
                usable = [name for name in wanted.split(",") if name in usable]
            if len(usable) < job["nodes"]:
                continue
            job["location"] = usable[: job["nodes"]]
            busy.update(job["location"])
            job["state"] = "starting"
            job["started"] = time.time()
            self.after(config["start_delay"], lambda identity=job["id"]: self._start(identity))

    def _start(self, identity: str) -> None:
        job, config = self.jobs.get(identity), self.config
        if job is None:
            return
        if job["ending"] or config["prologue_fails"]:
            over = "resources released; starting resource epilogue scripts"
            self._log(job, f"Info: {job['ending'] or over}")
            self._gone(job, None)
            return
        # Real ones are in /var/tmp; here every folder counts its jobs from 1.
        folder = self.folder.path / "var" / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        nodefile = folder / f"cobalt.{identity}"
        nodefile.write_text("".join(f"{name}\n" for name in job["location"]))
        account = pwd.getpwuid(os.getuid())
        home = config["home"] or account.pw_dir
        login = {
            "HOME": home,
            "LOGNAME": account.pw_name,
            "USER": account.pw_name,
            "SHELL": account.pw_shell or "/bin/sh",
            "MAIL": f"/var/mail/{account.pw_name}",
            **config["login_environment"],
        }
        variables = {"COBALT_JOBID": identity, **job["env"]}
        place = "local" if config["local_nodes"] else "cluster"
        first = job["location"][0]
        words = [job["command"], *job["args"]]
        if config["run_remote"]:
            path = ":".join(["/usr/local/bin:/usr/bin:/bin:/usr/games", *config["path"]])
            environ = {
                **login,
                "PATH": path,
                "SSH_CLIENT": "10.77.0.1 40022 22",
                "SSH_CONNECTION": "10.77.0.1 40022 10.77.0.11 22",
            }
            python = [sys.executable, "-I", "-S"]
            launch = [*python, str(ENGINE / "cobalt_launcher.py")]
            launch += ["--nf", str(nodefile), "--jobid", identity, "--cwd", job["cwd"]]
            for name, value in variables.items():
                launch += ["--env", f"{name}={value}"]
            launch += words
            command = [*python, str(ENGINE / "remote_shell.py"), place, first, *launch]
            cwd = home if os.path.isdir(home) else "/"
        else:
            start = job["started"]
            environ = {
                **login,
                "PATH": _login_path(login, config["path"]),
                "COBALT_NODEFILE": str(nodefile),
                "COBALT_PARTNAME": first,
                "COBALT_PARTSIZE": str(job["nodes"]),
                "COBALT_JOBSIZE": str(job["procs"]),
                "COBALT_STARTTIME": str(int(start)),
                "COBALT_ENDTIME": str(int(start + job["minutes"] * config["minute"])),
                **variables,
            }
            launch = [sys.executable, "-I", "-S", str(ENGINE / "cobalt_launcher.py")]
            launch += ["--cwd", job["cwd"], *words]
            # The server's own machine runs what asks for one node.
            on_head = config["local_nodes"] or job["nodes"] == 1
            command = nodes.on_node(first, on_head, launch)
            cwd = "/"
        stdin = os.open(job["input"] or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        stdout = append_file(job["output"], job["umask"])
        stderr = append_file(job["error"], job["umask"])
        if config["prologue_noise"]:
            os.write(stdout, config["prologue_noise"].encode())
        shown = " ".join(f"'{word}'" for word in command)
        self._log(job, f"Command: {shown}")
        # What the forker's own process has, which is not what reaches a script started by ssh.
        self._log(job, "Environment:")
        self._write_log(
            job, "".join(f"{name}={value}\n" for name, value in {**environ, **variables}.items())
        )
        self._log(job, f"Info: stdin received from {job['input'] or '/dev/null'}")
        self._log(job, f"Info: stdout sent to {job['output']}")
        self._log(job, f"Info: stderr sent to {job['error']}")
        try:
            job["pid"] = self.spawn(
                command,
                lambda status: self._task_ended(identity, status),
                environ=environ,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                umask=0o022 if config["run_remote"] else job["umask"],
            )
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        job["state"] = "running"
        self.after(job["minutes"] * config["minute"], lambda: self._walltime(identity))

    def _walltime(self, identity: str) -> None:
        job = self.jobs.get(identity)
        if job is not None and job["state"] == "running" and job["code"] is None:
            self._end_early(job, "maximum execution time exceeded; initiating job termination")

    def _end_early(self, job: Job, reason: str) -> None:
        """qdel, and the end of the walltime."""
        self._log(job, f"Info: {reason}")
        job["state"], job["ending"] = "killing", reason
        if self.config["run_remote"]:
            # Reaches the ssh client only. The script is not told.
            os.kill(job["pid"], signal.SIGTERM)
            return
        if job["attrs"].get("nopgkill") == "true":
            script = nodes.descendants(job["pid"])
            nodes.send(script[:1], signal.SIGTERM)
        else:
            nodes.send(self._group(job), signal.SIGTERM)
        self.after(
            self.config["force_kill_delay"], lambda: nodes.send(self._group(job), signal.SIGKILL)
        )

    def _group(self, job: Job) -> list[nodes.Process]:
        """The process group of the script. Its launcher is Cobalt's, and ends with the script."""
        return [
            process
            for process in nodes.descendants(os.getpid())
            if process.group == job["pid"] != process.pid
        ]

    # ---- the end ---------------------------------------------------------------------------------

    def _task_ended(self, identity: str, status: int) -> None:
        job = self.jobs[identity]
        # The ssh client says 255 where it was killed.
        code = 255 if os.WIFSIGNALED(status) and job["ending"] else exit_status(status)
        if job["ending"] is not None:
            self.after(self.config["linger"], lambda: self._gone(job, code))
            return
        job["code"] = code
        self._unfinished_logs += 1
        self.after(self.config["log_delay"], lambda: self._last_line(job, code))
        self.after(self.config["linger"], lambda: self._gone(job, code))

    def _last_line(self, job: Job, code: int) -> None:
        self._unfinished_logs -= 1
        self._log(
            job,
            f"Info: task completed normally with an exit code of {code}; "
            "initiating job cleanup and removal",
        )

    def _gone(self, job: Job, code: int | None) -> None:
        """Out of the queue. Whoever depends on it learns how it ended."""
        identity = job["id"]
        self.jobs.pop(identity, None)
        for other in self.jobs.values():
            if identity in other["dependencies"]:
                if code == 0:
                    other["met"].append(identity)
                else:
                    other["broken"] = True
                    self.after(
                        self.config["dependency_delay"],
                        lambda name=other["id"]: self._show_broken(name),
                    )
        folder = self.folder.path / "var" / "log"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / time.strftime("%Y%m%d", time.gmtime())).open("a") as accounting:
            shown = "unknown" if code is None else code
            when = time.strftime("%m/%d/%Y %H:%M:%S", time.gmtime())
            accounting.write(f"{when};E;{identity};Exit_status={shown}\n")
        delay = self.config["epilogue_delay"]
        if job["pid"] is not None and delay is not None:
            self._cleaning[identity] = job["location"]
            # After an end of its own there is nothing to wait for.
            self.after(delay if job["ending"] else 0, lambda: self._epilogue(identity))

    def _show_broken(self, identity: str) -> None:
        job = self.jobs.get(identity)
        if job is not None and job["broken"]:
            job["failed_dependency"] = True

    def _processes(self, identity: str) -> list[nodes.Process]:
        """All of a job, found as a site's epilogue finds them: by the id in their environment."""
        found = []
        for process in nodes.descendants(os.getpid()):
            try:
                if process.environ().get("COBALT_JOBID") == identity:
                    found.append(process)
            except OSError:
                continue
        return found

    def _epilogue(self, identity: str) -> None:
        nodes.send(self._processes(identity), signal.SIGKILL)
        (self.folder.path / "var" / "tmp" / f"cobalt.{identity}").unlink(missing_ok=True)
        self._cleaning.pop(identity, None)

    # ---- the .cobaltlog --------------------------------------------------------------------------

    def _log(self, job: Job, text: str) -> None:
        self._write_log(job, f"{stamp(time.time())} {text}\n")

    def _write_log(self, job: Job, text: str) -> None:
        descriptor = append_file(job["debuglog"], job["umask"])
        os.write(descriptor, text.encode(errors="surrogateescape"))
        os.close(descriptor)


_ON_NODES = ("starting", "running", "killing", "exiting")


def _login_path(login: dict[str, str], more: list[str]) -> str:
    """The PATH that a login shell's profile sets."""
    shown = subprocess.run(
        ["/bin/sh", "-l", "-c", 'printf "%s" "$PATH"'],
        env=login,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    return ":".join([shown.splitlines()[-1] if shown else "/usr/bin:/bin", *more])
