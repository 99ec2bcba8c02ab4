package child

import "syscall"

func endWithParent(attr *syscall.SysProcAttr, farewell syscall.Signal) { attr.Pdeathsig = farewell }
