package demo

import "syscall"

// endWithParent makes the kernel kill the child when its parent dies.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
