"""A command's side of the conversation with its server."""

from __future__ import annotations

from .folder import Folder, Message, ServerDown


class Client:
    """A command's connection to the server of its folder. `kind` is the server's, `defaults` are
    its settings where the folder gives none."""

    def __init__(self, program: str, kind: str, defaults: Message) -> None:
        self.program = program
        self.kind = kind
        self.folder = Folder.of_this_command(program)
        self.config = self.folder.config(defaults)

    def ask(self, operation: str, **more: object) -> Message:
        """The server's answer. Raises ServerDown."""
        if self.config["down"]:
            raise ServerDown("Connection refused")
        answer = self.folder.ask(self.kind, {"op": operation, **more})
        if answer.get("unreachable"):
            raise ServerDown("Connection refused")
        return answer
