/* A library of Windows that Debian's wine lacks, with the one function of it that Rust's library calls. */
int SystemFunction036(void *buffer, unsigned long length);

__declspec(dllexport) int ProcessPrng(void *buffer, unsigned long long length)
{
    return SystemFunction036(buffer, (unsigned long)length);
}
