//go:build !linux

package child

import "syscall"

// endWithParent can do nothing: only Linux signals a child when its parent dies.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// awaitExit is Linux's, too: elsewhere a process that ends by itself leaves
// its own children alone.
func awaitExit(int) bool { return false }
