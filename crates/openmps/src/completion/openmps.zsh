#compdef openmps nvidia-cuda-mps-control
# Completions of openmps and nvidia-cuda-mps-control for zsh: `openmps complete` knows them.
_openmps() {
    local -a found described
    local line
    found=("${(@f)$(openmps complete "${words[1]:t}" "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    for line in "${(@)found[2,-1]}"; do
        # What a word is stands behind a tab.
        described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#described )) && _describe -t values value described
    case $found[1] in
        files) _files ;;
        programs) _command_names -e; _files ;;
    esac
}
if [ "$funcstack[1]" = "_openmps" ]; then
    _openmps "$@"
else
    compdef _openmps openmps nvidia-cuda-mps-control
fi
