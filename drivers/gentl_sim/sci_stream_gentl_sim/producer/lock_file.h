// Exclusive use of a camera across processes, as a real one's control channel gives it.
#pragma once

#include <string>

namespace sci {

/// A lock that the system lets go of when the process ends, however it ends.
///
/// A POSIX record lock rather than flock(): children of fork() do not inherit it, so a worker that a Python program
/// leaves behind does not keep the camera.
class LockFile {
public:
    /// The folder is SCI_GENTL_SIM_LOCKS or the system's place for temporary files.
    explicit LockFile(const std::string& name);
    ~LockFile() { release(); }
    LockFile(const LockFile&) = delete;
    LockFile& operator=(const LockFile&) = delete;

    /// Take the lock. False if another process has it; throws `Error` (GC_ERR_IO) if there can be no lock file.
    bool acquire();
    void release();
    /// Whether another process has it. Only while we do not: closing the file would let our own lock go.
    bool held_elsewhere() const;

private:
    std::string path_;
    int file_ = -1;
};

}  // namespace sci
