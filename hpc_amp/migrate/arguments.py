"""How the arguments of a call change when the function does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import libcst as cst

# Makes the new arguments of a call; raises Undecidable.
Arguments = Callable[[cst.Call], cst.Call]
_NO_SPACES = cst.AssignEqual(
    whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
)


class Undecidable(Exception):
    """The text does not say what the call means; the message says why."""


def device_first(device: str) -> Arguments:
    """Put the device before all arguments, which stay."""

    def change(call: cst.Call) -> cst.Call:
        return _insert_first(call, cst.Arg(cst.SimpleString(f'"{device}"')))

    return change


def device_first_then_keywords(device: str, names: tuple[str, ...]) -> Arguments:
    """Put the device before all arguments, and name those that had only a position, because theirs
    is another one now."""

    def change(call: cst.Call) -> cst.Call:
        named = []
        for position, arg in enumerate(call.args):
            if arg.star == "*":
                raise Undecidable("what `*` gives is not known, and the positions are others")
            if arg.keyword is None and not arg.star:
                if position >= len(names):
                    raise Undecidable("it has more arguments than there are")
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
    """Accept a call with no other arguments than these, the first of which may have no name, and
    those in `renamed`, which get their new names. `answers` say what to do about others."""
    new_names = renamed or {}

    def change(call: cst.Call) -> cst.Call:
        kept: list[cst.Arg] = []
        for position, arg in enumerate(call.args):
            name = "" if arg.keyword is None else arg.keyword.value
            if arg.star:
                raise Undecidable(f"what `{arg.star}` gives is not known")
            if not name and position > 0:
                raise Undecidable("its second argument means something else in torch")
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
    # In a call with an argument a line, the new one gets a line, too.
    comma = cst.Comma(whitespace_after=_new_line(call) or cst.SimpleWhitespace(" "))
    return call.with_changes(args=[arg.with_changes(comma=comma), *map(_closed, call.args)])


def _append(call: cst.Call, keyword: str, value: str) -> cst.Call:
    arg = cst.Arg(cst.parse_expression(value), keyword=cst.Name(keyword), equal=_NO_SPACES)
    if not call.args:
        return call.with_changes(args=[arg])
    *before, last = map(_closed, call.args)
    new_line = _new_line(call)
    if new_line is not None and isinstance(last.comma, cst.Comma):
        # `last,` stands on a line of its own, and so will the new one.
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
    """In parentheses, where an expression may only do without them as the one argument, or without
    a name."""
    value = arg.value
    if not isinstance(value, cst.NamedExpr | cst.GeneratorExp) or value.lpar:
        return arg
    return arg.with_changes(
        value=value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    )


def _new_line(call: cst.Call) -> cst.ParenthesizedWhitespace | None:
    """The line break and indentation behind the opening parenthesis, None where there is none."""
    gap = call.whitespace_before_args
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return None
    return cst.ParenthesizedWhitespace(indent=gap.indent, last_line=gap.last_line)
