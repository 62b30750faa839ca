# Completions of openmps and nvidia-cuda-mps-control for bash: `openmps complete` knows them.
_openmps() {
    local found words begun=${COMP_WORDS[COMP_CWORD]}
    mapfile -t found < <(openmps complete "${COMP_WORDS[0]##*/}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
    COMPREPLY=("${found[@]:1}")
    # What a word is stands behind a tab.
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    case ${found[0]} in
        files) compopt -o default 2> /dev/null ;;
        programs)
            mapfile -t words < <(compgen -c -- "$begun")
            COMPREPLY+=("${words[@]}")
            compopt -o default 2> /dev/null
            ;;
    esac
}
complete -F _openmps openmps nvidia-cuda-mps-control
