package config

import (
	"crypto/sha256"
	"os"
)

// File is one that a configuration was read from: the file that --config names,
// or one that it refers to.
type File struct {
	Path    string
	Version Version // that was read
}

// Version tells contents of a file apart without showing them.
type Version struct {
	sum    [sha256.Size]byte
	absent bool // it could not be read
	once   bool // a pipe or a device: reading it again would bring something else
}

// Current is the version that is there now. What can be read only once stays as
// it is.
func (f File) Current() Version {
	if f.OnlyOnce() || isReadOnce(f.Path) {
		return Version{once: true}
	}
	return versionOf(os.ReadFile(f.Path))
}

// OnlyOnce reports that the file was a pipe or a device.
func (f File) OnlyOnce() bool { return f.Version.once }

func versionOf(content []byte, err error) Version {
	if err != nil {
		return Version{absent: true}
	}
	return Version{sum: sha256.Sum256(content)}
}

// isReadOnce spares a pipe the second reading, which might never end.
func isReadOnce(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// sources are the files that one configuration is read from. Each is read once,
// so that two references to it cannot mean two contents.
type sources struct {
	files []File
	read  map[string]source
}

type source struct {
	content []byte
	err     error
}

func (s *sources) readFile(path string) ([]byte, error) {
	if known, is := s.read[path]; is {
		return known.content, known.err
	}
	version := Version{once: true}
	isOnce := isReadOnce(path)
	content, err := os.ReadFile(path)
	if !isOnce {
		version = versionOf(content, err)
	}
	s.files = append(s.files, File{path, version})
	s.read[path] = source{content, err}
	return content, err
}
