"""Functions that change the arguments of a call to fit a new function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import libcst as cst

# Returns a call with its new arguments. Raises Undecidable.
Arguments = Callable[[cst.Call], cst.Call]
_NO_SPACES = cst.AssignEqual(
    whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
)


class Undecidable(Exception):
    """The text of the script does not decide the meaning of a call. The message is the reason."""


def device_first(device: str) -> Arguments:
    """Insert the device as first argument, and keep the others."""

    def change(call: cst.Call) -> cst.Call:
        return _insert_first(call, cst.Arg(cst.SimpleString(f'"{device}"')))

    return change


def device_first_then_keywords(device: str, names: tuple[str, ...]) -> Arguments:
    """Insert the device as first argument, and turn positional arguments into keywords.

    `names` are the names of the old positional arguments, whose positions have changed.
    """

    def change(call: cst.Call) -> cst.Call:
        named = []
        for position, arg in enumerate(call.args):
            if arg.star == "*":
                raise Undecidable("the arguments in `*` are not known, and positions have changed")
            if arg.keyword is None and not arg.star:
                if position >= len(names):
                    raise Undecidable("it has too many arguments")
                arg = _closed(arg)
                arg = arg.with_changes(keyword=cst.Name(names[position]), equal=_NO_SPACES)
            named.append(arg)
        new = cst.Arg(cst.SimpleString(f'"{device}"'))
        return _insert_first(call.with_changes(args=named), new)

    return change


def keyword_added(keyword: str, value: str) -> Arguments:
    """Add a keyword argument at the end."""

    def change(call: cst.Call) -> cst.Call:
        return _append(call, keyword, value)

    return change


def only(
    allowed: Collection[str],
    then: Arguments | None = None,
    *,
    renamed: Mapping[str, str] | None = None,
    answers: Mapping[str, str] | None = None,
) -> Arguments:
    """Accept only known arguments, and then apply `then`.

    Only the first argument may be positional. Arguments in `renamed` get their new names. `answers`
    has advice for arguments that are not accepted.
    """
    new_names = renamed or {}

    def change(call: cst.Call) -> cst.Call:
        kept: list[cst.Arg] = []
        for position, arg in enumerate(call.args):
            name = "" if arg.keyword is None else arg.keyword.value
            if arg.star:
                raise Undecidable(f"the arguments in `{arg.star}` are not known")
            if not name and position > 0:
                raise Undecidable("its second argument has another meaning in torch")
            if name in new_names:
                arg = arg.with_changes(keyword=cst.Name(new_names[name]))
            elif name and name not in allowed:
                answer = (answers or {}).get(name)
                raise Undecidable(f"torch has no `{name}`" + (f": {answer}" if answer else ""))
            kept.append(arg)
        if not kept:
            raise Undecidable("it has no argument")
        call = call.with_changes(args=kept)
        return call if then is None else then(call)

    return change


def _insert_first(call: cst.Call, arg: cst.Arg) -> cst.Call:
    if not call.args:
        return call.with_changes(args=[arg])
    # If each argument is on its own line, so is the new one.
    comma = cst.Comma(whitespace_after=_new_line(call) or cst.SimpleWhitespace(" "))
    return call.with_changes(args=[arg.with_changes(comma=comma), *map(_closed, call.args)])


def _append(call: cst.Call, keyword: str, value: str) -> cst.Call:
    arg = cst.Arg(cst.parse_expression(value), keyword=cst.Name(keyword), equal=_NO_SPACES)
    if not call.args:
        return call.with_changes(args=[arg])
    *before, last = map(_closed, call.args)
    new_line = _new_line(call)
    if new_line is not None and isinstance(last.comma, cst.Comma):
        # `last,` is on its own line, and so is the new argument.
        arg = arg.with_changes(comma=last.comma)
        last = last.with_changes(comma=cst.Comma(whitespace_after=new_line))
    else:
        arg = arg.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")),
            whitespace_after_arg=cst.SimpleWhitespace(""),
        )
    return call.with_changes(args=[*before, last, arg])


def _closed(arg: cst.Arg) -> cst.Arg:
    """Add the parentheses that some expressions need if they are not the only argument."""
    value = arg.value
    if not isinstance(value, cst.NamedExpr | cst.GeneratorExp) or value.lpar:
        return arg
    return arg.with_changes(
        value=value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    )


def _new_line(call: cst.Call) -> cst.ParenthesizedWhitespace | None:
    """The line break and indentation after the opening parenthesis, or None."""
    gap = call.whitespace_before_args
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return None
    return cst.ParenthesizedWhitespace(indent=gap.indent, last_line=gap.last_line)
