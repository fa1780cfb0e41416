"""Writes the completion scripts of the shells.

Each script contains the same functions in the language of its shell. The first functions are lookup tables for the
actions and options of a command, and for the kinds of the values of options and operands. The last function reads
the words of the command line, looks up the candidates for the current word, and prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parley.cli.completion_table import NodeOfTable, Value, command_table
from parley.config.checks import Check, Table
from parley.config.providers import READY_PROVIDERS
from parley.config.schema import SETTINGS
from parley.config.toml_lines import written_key

__all__ = ["completion_script"]

Row = tuple[str, str]
"""A pattern of a `case` statement, and the shell commands that run if the pattern matches."""


def completion_script(shell: str) -> str:
    """Return the completion script for the shell `bash`, `zsh` or `fish`."""
    table = command_table()
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](table)
    return f"# Completion of parley for {shell}, printed by `parley completion {shell}`.\n{script}"


def _setting_keys(check: Check = SETTINGS, at: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted keys of the settings in the schema `check`. `at` is the path of `check` in the whole schema.
    Keys that the user chooses, such as the names of profiles, are not included.
    """
    if isinstance(check, Table):
        for name, inner in check.fields.items():
            if isinstance(inner, Table):
                yield from _setting_keys(inner, (*at, name))
            else:
                yield written_key((*at, name))


def _lists() -> dict[str, list[str]]:
    """Return lists of completion candidates, keyed by the kind of the value. Kinds whose candidates depend on the
    home, such as conversation ids, are not included.
    """
    keys, providers = sorted(_setting_keys()), ["openai", *READY_PROVIDERS]
    return {
        "settings": keys,
        "assignments": [f"{key}=" for key in keys],
        "providers": providers,
        "models": [f"{name}/" for name in providers],
    }


def _kind(value: Value) -> str:
    """Return the description of a value in a completion script: the kind of the value, followed by the possible
    words if the kind is `words`.
    """
    return " ".join((value.kind, *value.words))


def _sh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _route(node: NodeOfTable) -> str:
    return " ".join(node.path)


def _value_rows(table: Sequence[NodeOfTable]) -> Iterator[tuple[str, str]]:
    """For each option that takes a value, yield a key and the description of the value. The key consists of the
    words of the command and the name of the option, such as `config get --config`.
    """
    for node in table:
        for option in node.options:
            if option.value is not None:
                yield from ((f"{_route(node)} {name}", _kind(option.value)) for name in option.names)


def _operand_rows(table: Sequence[NodeOfTable]) -> Iterator[tuple[str, str, bool]]:
    """For each operand that can be completed, yield a key, the description of the value, and whether the operand
    can be repeated. The key consists of the words of the command and the index of the operand, for example `send
    0`.
    """
    for node in table:
        for number, operand in enumerate(node.operands):
            if operand.value.kind != "text":
                yield f"{_route(node)} {number}", _kind(operand.value), operand.repeats


# --- bash and zsh ------------------------------------------------------------------------


def _function(name: str, rows: Sequence[Row], subject: str) -> str:
    lines = "".join(f"        {pattern}) {body} ;;\n" for pattern, body in rows)
    return f"{name}() {{\n    case {subject} in\n{lines}    esac\n}}\n\n"


def _bash(table: Sequence[NodeOfTable]) -> str:
    def printed(words: Sequence[str]) -> str:
        return f"printf '%s\\n' {' '.join(map(_sh_quoted, words))}"

    actions = [
        (_sh_quoted(_route(one)), printed([name for name, _ in one.actions])) for one in table if one.actions
    ]
    options = [(_sh_quoted(_route(one)), printed([name for o in one.options for name in o.names])) for one in table]
    values = [(_sh_quoted(key), f"echo {_sh_quoted(kind)}") for key, kind in _value_rows(table)]
    operands = [
        (_repeated(key) if repeats else _sh_quoted(key), f"echo {_sh_quoted(kind)}")
        for key, kind, repeats in _operand_rows(table)
    ]
    lists = [(name, printed(words)) for name, words in _lists().items()]
    return (
        _function("_parley_actions", actions, '"$1"')
        + _function("_parley_options", options, '"$1"')
        + _function("_parley_value", values, '"$1"')
        + _function("_parley_operand", operands, '"$1"')
        + _function("_parley_list", lists, '"$1"')
        + _BASH
    )


def _repeated(key: str) -> str:
    """Return a shell pattern for an operand that can be repeated. The argument `key` consists of the words of the
    command and the index of the operand, such as `send 0`. The pattern matches these words with any index.
    """
    return f"{_sh_quoted(key.rpartition(' ')[0] + ' ')}*"


_BASH = r"""_parley_candidates() {
    case $1 in
        words) shift; printf '%s\n' "$@" ;;
        conversations|approvals) command parley completion "$1" 2>/dev/null | cut -f 1 ;;
        *) _parley_list "$1" ;;
    esac
}

_parley() {
    local line=${COMP_LINE:0:COMP_POINT} words=() cur= prefix= kind= route= word one
    local operand=0 only=0 count i
    COMPREPLY=()
    read -ra words <<< "$line"
    count=${#words[@]}
    if [[ $line != *[[:space:]] ]]; then
        count=$((count - 1))
        cur=${words[count]}
    fi
    for (( i = 1; i < count; i++ )); do
        word=${words[i]}
        if [[ -n $kind ]]; then
            kind=
        elif [[ $only == 0 && $word == -- ]]; then
            only=1
        elif [[ $only == 0 && $word == -* ]]; then
            [[ $word == *=* ]] || kind=$(_parley_value "$route $word")
        elif [[ $operand == 0 && $'\n'$(_parley_actions "$route")$'\n' == *$'\n'"$word"$'\n'* ]]; then
            route=${route:+$route }$word
        else
            operand=$((operand + 1))
        fi
    done
    if [[ -n $kind ]]; then
        :
    elif [[ $only == 0 && $cur == --*=* ]]; then
        kind=$(_parley_value "$route ${cur%%=*}")
        prefix=${cur%%=*}=
        cur=${cur#*=}
    elif [[ $only == 0 && $cur == -* ]]; then
        kind="words $(_parley_options "$route" | tr '\n' ' ')"
    else
        [[ $operand == 0 ]] && kind=$(_parley_actions "$route" | tr '\n' ' ')
        if [[ -n $kind ]]; then
            kind="words $kind"
        else
            kind=$(_parley_operand "$route $operand")
        fi
    fi
    case $kind in
        ''|text) return ;;
        files|directories)
            compopt -o filenames 2>/dev/null
            [[ $kind == files ]] && i=-f || i=-d
            while IFS= read -r one; do COMPREPLY+=("$one"); done < <(compgen "$i" -- "$cur")
            ;;
        *)
            while IFS= read -r one; do
                [[ $one == "$cur"* ]] && COMPREPLY+=("$one")
            done < <(_parley_candidates $kind)
            [[ $kind == assignments || $kind == models ]] && compopt -o nospace 2>/dev/null
            ;;
    esac
    if [[ -n $prefix && $COMP_WORDBREAKS != *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
    fi
    return 0
}

complete -F _parley parley
"""


def _zsh(table: Sequence[NodeOfTable]) -> str:
    def described(pairs: Sequence[tuple[str, str]]) -> str:
        return f"reply=({' '.join(_sh_quoted(f'{name}:{text}') for name, text in pairs)})"

    actions = [(_sh_quoted(_route(one)), described(one.actions)) for one in table if one.actions]
    options = [
        (_sh_quoted(_route(one)), described([(name, o.help) for o in one.options for name in o.names]))
        for one in table
    ]
    values = [(_sh_quoted(key), f"REPLY={_sh_quoted(kind)}") for key, kind in _value_rows(table)]
    operands = [
        (_repeated(key) if repeats else _sh_quoted(key), f"REPLY={_sh_quoted(kind)}")
        for key, kind, repeats in _operand_rows(table)
    ]
    lists = [(name, f"reply=({' '.join(map(_sh_quoted, words))})") for name, words in _lists().items()]
    return (
        "#compdef parley\n\n"
        + _function("_parley_actions", actions, '"$1"')
        + _function("_parley_options", options, '"$1"')
        + _function("_parley_value", values, '"$1"')
        + _function("_parley_operand", operands, '"$1"')
        + _function("_parley_list", lists, '"$1"')
        + _ZSH
    )


_ZSH = r"""_parley() {
    local word route='' kind='' REPLY='' cur=${words[CURRENT]} one title
    local -i i operand=0 only=0
    local -a reply
    for (( i = 2; i < CURRENT; i++ )); do
        word=${words[i]}
        REPLY=''
        reply=()
        if [[ -n $kind ]]; then
            kind=''
        elif (( ! only )) && [[ $word == -- ]]; then
            only=1
        elif (( ! only )) && [[ $word == -* ]]; then
            [[ $word == *=* ]] || _parley_value "$route $word"
            kind=$REPLY
        else
            (( operand )) || _parley_actions "$route"
            if (( ${reply[(I)${(b)word}:*]} )); then
                route=${route:+$route }$word
            else
                operand+=1
            fi
        fi
    done
    REPLY=''
    reply=()
    if [[ -n $kind ]]; then
        :
    elif (( ! only )) && [[ $cur == --*=* ]]; then
        _parley_value "$route ${cur%%=*}"
        kind=$REPLY
        compset -P '*='
    elif (( ! only )) && [[ $cur == -* ]]; then
        _parley_options "$route"
        _describe -o option reply
        return
    else
        (( operand )) || _parley_actions "$route"
        if (( $#reply )); then
            _describe command reply
            return
        fi
        _parley_operand "$route $operand"
        kind=$REPLY
    fi
    case $kind in
        ''|text) ;;
        words\ *) compadd -- ${(s: :)${kind#words }} ;;
        files) _files ;;
        directories) _files -/ ;;
        conversations|approvals)
            while IFS=$'\t' read -r one title; do
                reply+=("$one:$title")
            done < <(command parley completion $kind 2>/dev/null)
            _describe -V $kind reply
            ;;
        *)
            _parley_list $kind
            if [[ $kind == assignments || $kind == models ]]; then
                compadd -S '' -- $reply
            else
                compadd -- $reply
            fi
            ;;
    esac
}

if [[ ${funcstack[1]} == _parley ]]; then
    _parley "$@"
else
    compdef _parley parley
fi
"""


# --- fish --------------------------------------------------------------------------------


def _fish(table: Sequence[NodeOfTable]) -> str:
    def described(pairs: Sequence[tuple[str, str]]) -> str:
        words = " ".join(f"{_fish_quoted(name)} {_fish_quoted(text)}" for name, text in pairs)
        return f"printf '%s\\t%s\\n' {words}"

    def function(name: str, rows: Sequence[Row]) -> str:
        lines = "".join(f"        case {pattern}\n            {body}\n" for pattern, body in rows)
        return f'function {name}\n    switch "$argv[1]"\n{lines}    end\nend\n\n'

    quote: Callable[[str], str] = _fish_quoted
    actions = [(quote(_route(one)), described(one.actions)) for one in table if one.actions]
    options = [
        (quote(_route(one)), described([(name, o.help) for o in one.options for name in o.names])) for one in table
    ]
    values = [(quote(key), f"echo {quote(kind)}") for key, kind in _value_rows(table)]
    operands = [
        (quote(f"{key.rpartition(' ')[0]} *") if repeats else quote(key), f"echo {quote(kind)}")
        for key, kind, repeats in _operand_rows(table)
    ]
    lists = [(name, f"printf '%s\\n' {' '.join(map(quote, words))}") for name, words in _lists().items()]
    return (
        function("__parley_actions", actions)
        + function("__parley_options", options)
        + function("__parley_value", values)
        + function("__parley_operand", operands)
        + function("__parley_list", lists)
        + _FISH
    )


_FISH = r"""function __parley_candidates
    set -l kind (string split ' ' -- $argv[1])
    switch "$kind[1]"
        case '' text
        case words
            printf '%s\n' $kind[2..-1]
        case conversations approvals
            command parley completion $kind[1] 2>/dev/null
        case files
            __fish_complete_path $argv[2]
        case directories
            __fish_complete_directories $argv[2] ''
        case '*'
            __parley_list $kind[1]
    end
end

function __parley_complete
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    set -l route ''
    set -l kind ''
    set -l operand 0
    set -l only 0
    for word in $words[2..-1]
        if test -n "$kind"
            set kind ''
        else if test $only = 0; and test "$word" = --
            set only 1
        else if test $only = 0; and string match -q -- '-*' "$word"
            string match -q -- '*=*' "$word"; or set kind (__parley_value "$route $word")
        else if test $operand = 0; and contains -- "$word" (__parley_actions "$route" | string replace -r '\t.*' '')
            set route (string trim -- "$route $word")
        else
            set operand (math $operand + 1)
        end
    end
    if test -n "$kind"
        __parley_candidates "$kind" "$cur"
    else if test $only = 0; and string match -q -- '--*=*' "$cur"
        set -l parts (string split -m 1 = -- $cur)
        for one in (__parley_candidates (__parley_value "$route $parts[1]") "$parts[2]")
            echo "$parts[1]=$one"
        end
    else if test $only = 0; and string match -q -- '-*' "$cur"
        __parley_options "$route"
    else if test $operand = 0; and test -n "$(__parley_actions "$route")"
        __parley_actions "$route"
    else
        __parley_candidates "$(__parley_operand "$route $operand")" "$cur"
    end
end

complete -c parley -f -a '(__parley_complete)'
"""
