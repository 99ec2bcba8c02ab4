package throwaway

import "syscall"

// endWithParent makes the kernel stop the child when its parent dies.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
