if arg[2] == 0 and posix.stat("/run/systemd/system") then
    os.execute("systemctl disable --now openmps.service")
end
