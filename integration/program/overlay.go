package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Edit changes one place of one file.
type Edit struct {
	File  string // below the module's folder
	Guard string // octets that the file contains exactly once
	Break string // what stands there instead
}

// writeOverlay writes the edited files into folder, and beside them the JSON that
// `go build -overlay` reads. The files themselves stay as they are.
func writeOverlay(folder string, edits []Edit) (string, error) {
	texts := map[string]string{}
	for _, edit := range edits {
		if err := edit.apply(texts); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for path, text := range texts {
		replace[path] = filepath.Join(folder, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// apply changes what is in texts by path, or the file where it is not there yet.
func (e Edit) apply(texts map[string]string) error {
	path := filepath.Join(root(), e.File)
	text, edited := texts[path]
	if !edited {
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = string(source)
	}
	if found := strings.Count(text, e.Guard); found != 1 {
		return fmt.Errorf("%q is %d times in %s, want once: the code has moved on, and so must this edit", e.Guard, found, e.File)
	}
	texts[path] = strings.Replace(text, e.Guard, e.Break, 1)
	return nil
}
