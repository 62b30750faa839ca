# Completions of openmps and nvidia-cuda-mps-control for fish: `openmps complete` knows them.
function __openmps_complete
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    set -l found (openmps complete (string replace -r '.*/' '' -- $words[1]) $words[2..-1] "$begun" 2> /dev/null)
    printf '%s\n' $found[2..-1]
    switch "$found[1]"
        case files
            __fish_complete_path "$begun"
        case programs
            complete -C "$begun"
    end
end
complete -c openmps -f -a '(__openmps_complete)'
complete -c nvidia-cuda-mps-control -f -a '(__openmps_complete)'
