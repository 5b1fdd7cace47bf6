eval "$(_PURGATORY_COMPLETE=bash_source purgatory)"
offer() {
    COMPREPLY=() COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _purgatory_completion purgatory
    printf '%s\n' "${COMPREPLY[@]}"
}
offer purgatory st
offer purgatory ls --pa
until [ "${COMPREPLY[*]}" = orders-12 ]; do offer purgatory show orders-1 > /dev/null; done  # a daemon may be late
