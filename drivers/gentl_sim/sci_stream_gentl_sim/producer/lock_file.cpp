#include "lock_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "error.h"

namespace sci {

namespace {

struct flock whole_file() {
    struct flock region {};
    region.l_type = F_WRLCK;
    region.l_whence = SEEK_SET;
    return region;
}

std::string folder() {
    for (const char* name : {"SCI_GENTL_SIM_LOCKS", "TMPDIR"}) {
        const char* value = std::getenv(name);
        if (value != nullptr && *value != '\0') {
            return value;
        }
    }
    return "/tmp";
}

}  // namespace

LockFile::LockFile(const std::string& name)
    : path_(folder() + "/sci_gentl_sim-" + std::to_string(getuid()) + "-" + name + ".lock") {}

bool LockFile::acquire() {
    if (file_ >= 0) {
        return false;
    }
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
        throw Error(gentl::GC_ERR_IO, "lock file " + path_ + ": " + std::strerror(errno));
    }
    struct flock region = whole_file();
    if (fcntl(file, F_SETLK, &region) != 0) {
        close(file);
        return false;
    }
    file_ = file;
    return true;
}

void LockFile::release() {
    if (file_ >= 0) {
        close(file_);  // the file stays: removing it would let two processes lock two files of one name
        file_ = -1;
    }
}

bool LockFile::held_elsewhere() const {
    const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        return false;
    }
    struct flock region = whole_file();
    const bool held = fcntl(file, F_GETLK, &region) == 0 && region.l_type != F_UNLCK;
    close(file);
    return held;
}

}  // namespace sci
