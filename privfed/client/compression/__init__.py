"""How is an update sent in fewer bytes, so that sums stay sums and noise covers what is sent?"""
