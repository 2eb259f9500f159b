//go:build ignore

/* The program of the probe image. It exits with 0: running it at all shows that the node could pull the image. */
#include "sys.h"

__attribute__((noreturn, used)) void start(long *stack)
{
	(void)stack;
	sys_exit(0);
}
