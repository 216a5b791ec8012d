"""What every lock that is made of files needs: descriptors, places, and news. Nothing here knows of locks."""
