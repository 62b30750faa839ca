-- The default directories have the names of NVIDIA's: where its utility is installed they are its own.
if arg[2] == 0 and not posix.stat("/usr/bin/nvidia-cuda-mps-control") then
    for _, log in ipairs({"control.log", "control.log.1", "server.log", "server.log.1"}) do
        os.remove("/var/log/nvidia-mps/" .. log)
    end
    for _, directory in ipairs({"/var/log/nvidia-mps", "/tmp/nvidia-mps", "/run/openmps"}) do
        posix.rmdir(directory)
    end
end
