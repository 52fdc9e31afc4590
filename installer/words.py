"""The words of run, install and uninstall, read without click where they are plain; unknown variables."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from installer.flags import FLAGS, PREFIX, SHOW_SECRETS, Flag

# As click reads them of the environment.
TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
COMPLETION: Final = "_TOOLKIT_INSTALLER_COMPLETE"  # a shell asks click which words there are


def plain(
    words: Sequence[str], environment: Mapping[str, str]
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return the values of all flags, and the fields of those that somebody gave.

    None where a word asks for help, is wrong, or is not understood: click finds the answer to that.
    """
    if COMPLETION in environment:
        return None
    try:
        said = _of_words(words)
        said |= {
            flag.field: _of_variable(flag, text)
            for flag in FLAGS
            if flag.field not in said and (text := environment.get(flag.variable))  # an empty one is none
        }
    except ValueError:
        return None
    return {flag.field: flag.default for flag in FLAGS} | said, frozenset(said)


def _of_variable(flag: Flag, text: str) -> Any:
    """Return what the text of a flag's variable stands for.

    Raises:
        ValueError: it is not understood.
    """
    if isinstance(flag.default, bool):
        word = text.strip().lower()
        if word not in TRUE | FALSE:
            raise ValueError
        return word in TRUE
    if isinstance(flag.default, tuple):
        return tuple(_value(flag, each) for each in text.split(","))
    return _value(flag, text)


def _of_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields that ``words`` set; of a flag that takes one value the last one counts.

    Raises:
        ValueError: a word is not understood.
    """
    flags = {flag.name: flag for flag in FLAGS}
    switches = {flag.name: flag.field for flag in FLAGS if isinstance(flag.default, bool)}
    unset = {f"--no-{name.removeprefix('--')}": field for name, field in switches.items()}
    said, rest = dict[str, Any](), iter(words)
    for word in rest:
        if word in switches:
            said[switches[word]] = True
        elif word in unset:
            said[unset[word]] = False
        else:
            name, equals, text = word.partition("=")
            value = text if equals else next(rest, None)
            if name in switches or name not in flags or value is None:
                raise ValueError
            flag = flags[name]
            found = _value(flag, value)
            said[flag.field] = (
                (*said.get(flag.field, ()), found) if isinstance(flag.default, tuple) else found
            )
    return said


def _value(flag: Flag, text: str) -> Any:
    if flag.choices and text not in flag.choices:
        raise ValueError
    return float(text) if isinstance(flag.default, float) else text


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin like ours and are none of ours, with the one that may be meant."""
    known = {*(flag.variable for flag in FLAGS), SHOW_SECRETS}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if not unknown:
        return {}
    # Loaded only where there is something to say: this is asked at each start.
    from difflib import get_close_matches

    return {name: next(iter(get_close_matches(name, known, n=1)), "") for name in unknown}
