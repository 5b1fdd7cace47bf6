compdef() { true; }
compadd() { print -rl -- $completions; }
_describe() { print -rl -- ${completions_with_descriptions%%:*}; }
eval "$(_PURGATORY_COMPLETE=zsh_source purgatory)"
offer() { words=("$@"); CURRENT=$#; _purgatory_completion; }
offer purgatory st
offer purgatory ls --pa
