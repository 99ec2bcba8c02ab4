//go:build !linux

package child

import "syscall"

// endWithParent does nothing: only Linux signals a child when its parent dies.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// awaitExit does nothing: only on Linux are the remaining children of a process killed.
func awaitExit(int) bool { return false }
