_PURGATORY_COMPLETE=fish_source purgatory | source
complete -C "purgatory st" | cut -f 1
complete -C "purgatory ls --pa" | cut -f 1
