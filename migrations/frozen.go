package migrations

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrEdited says that this program holds a migration that differs from the one that was
// released. A database that has the released one would never get the difference.
var ErrEdited = errors.New("a released migration was edited; restore it, and put the change into a new one")

// frozen holds the checksums of the migrations that were released, as sha256sum prints them. It
// is empty before the first release; `make freeze` writes it.
//
//go:embed frozen.sha256
var frozen string

// Intact returns ErrEdited if a released migration of this program is not what it was.
func Intact() error {
	for line := range strings.Lines(frozen) {
		sum, name, found := strings.Cut(strings.TrimSpace(line), "  ")
		if !found {
			return fmt.Errorf("migrations/frozen.sha256: %q is no line of sha256sum", line)
		}
		migration, err := files.ReadFile("sql/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if now := sha256.Sum256(migration); err != nil || hex.EncodeToString(now[:]) != sum {
			return fmt.Errorf("%w (%s)", ErrEdited, name)
		}
	}
	return nil
}
