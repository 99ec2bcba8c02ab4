//go:build !linux

package child

import "syscall"

// endWithParent can do nothing: only Linux tells a child of its parent's death.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}
